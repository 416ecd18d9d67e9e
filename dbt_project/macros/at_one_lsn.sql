{#-
  Relations of these tables (names as in `published`) at the one LSN at which all of them were proven, by name. The views
  of `published` move one after another; this is one read of what a check writes in one commit. A table that was not
  proven there is refused by name. `cdc_rows` is in cdc_run.sql.
-#}
{% macro at_one_lsn(names) %}
  {% set relations, stands = {}, {} %}
  {% if execute %}
    {% set proofs = {} %}
    {% for row in cdc_rows("select tag || '@' || snapshot_id, lsn, tag from ops.published where lsn is not null") %}
      {% do proofs.update({row[0]: row}) %}
    {% endfor %}
    {% for name in names %}
      {% for row in cdc_rows("select name || '@' || snapshot_id from current." ~ name ~ ".refs") if row[0] in proofs %}
        {% do stands.update({name: proofs[row[0]][1] | int}) %}
        {% do relations.update({name: "current." ~ name ~ " version as of '" ~ proofs[row[0]][2] ~ "'"}) %}
      {% endfor %}
    {% endfor %}
    {% set newest = stands.values() | max %}
    {% set behind = [] %}
    {% for name in names if stands.get(name) != newest or not stands %}
      {% do behind.append(name ~ (' (' ~ (cdc_lsn_text(stands[name]) | trim) ~ ')' if name in stands else ' (never)')) %}
    {% endfor %}
    {% if behind %}
      {% do exceptions.raise_compiler_error("reading at one LSN: not proven at that of the others: " ~ behind | join(', ')
          ~ "; cdc check, or name fewer") %}
    {% endif %}
  {% else %}
    {% for name in names %}{% do relations.update({name: name}) %}{% endfor %}
  {% endif %}
  {% do return(relations) %}
{% endmacro %}
