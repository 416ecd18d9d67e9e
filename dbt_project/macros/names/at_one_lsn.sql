{% macro at_one_lsn(tables) %}
  {% set proofs = source('ops', 'published') %}
  {% set given, relations, stands = {}, {}, {} %}
  {% for table in tables %}
    {% set relation = source('published', table) if table is string else table %}
    {% do given.update({table if table is string else table.identifier: relation}) %}
  {% endfor %}
  {% if execute %}
    {# If two tables were proven under one name, the older proof is of a table that no longer has this name. #}
    {% for row in cdc_rows("select relation, lsn, 's' || snapshot_id from " ~ proofs.render() ~ " where relation is not null order by batch_id")
        if row[0] in given %}
      {% do stands.update({row[0]: row[1] | int}) %}
      {% set rows = given[row[0]].incorporate(path={'schema': cdc_namespace('current')}).render() ~ " version as of " ~ row[2][1:] %}
      {% do relations.update({row[0]: '(select * from ' ~ rows ~ ' where false)' if flags.EMPTY else rows}) %}
    {% endfor %}
    {% set newest = stands.values() | max %}
    {% set behind = [] %}
    {% for name in given if stands.get(name) != newest or not stands %}
      {% do behind.append(name ~ (' (' ~ (cdc_lsn_text(stands[name]) | trim) ~ ')' if name in stands else ' (never under this name)')) %}
    {% endfor %}
    {% if behind %}
      {% do exceptions.raise_compiler_error("reading at one LSN: not proven at that of the others: " ~ behind | join(', ')
          ~ "; cdc check, or name fewer") %}
    {% endif %}
  {% else %}
    {% for name in given %}{% do relations.update({name: name}) %}{% endfor %}
  {% endif %}
  {% do return(relations) %}
{% endmacro %}
