{% macro cdc_read_position() %}
  {# `cdc build` says which table snapshot and batch it read; a plain run takes the newest. #}
  {% set snapshot = env_var('CDC_RUN_SNAPSHOT', '') %}
  {% if not snapshot %}
    {% set rows = cdc_rows("select cast(snapshot_id as string) || 's' from " ~ cdc_log() ~ ".refs where name = 'main'") %}
    {% if not rows %}
      {% do exceptions.raise_compiler_error("raw.events holds nothing yet; run cdc init, then cdc drain") %}
    {% endif %}
    {% set snapshot = rows[0][0][:-1] %}
  {% endif %}
  {% set last = cdc_rows("select batch_id, generation, payload from " ~ cdc_log() ~ " version as of " ~ snapshot
      ~ " where kind = 'batch'" ~ (" and batch_id <= " ~ env_var('CDC_RUN_BATCH') if env_var('CDC_RUN_BATCH', '') else "")
      ~ " order by batch_id desc limit 1") %}
  {% if not last %}
    {% do exceptions.raise_compiler_error("raw.events has no batch yet; run cdc init, then cdc drain") %}
  {% endif %}
  {% set complete = fromjson(last[0][2])['complete_to'] | int %}
  {# `cdc build` stops at an earlier LSN of this batch to change a table's schema there. #}
  {% set asked = var('as_of_lsn', none) or env_var('CDC_RUN_UPTO', '') or none %}
  {% set upto = complete if asked is none else (cdc_lsn(asked) | trim | int) %}
  {% if upto > complete %}
    {% do exceptions.raise_compiler_error("LSN " ~ (cdc_lsn_text(upto) | trim) ~ " is not in the log yet: it is complete to "
        ~ (cdc_lsn_text(complete) | trim) ~ "; run cdc drain") %}
  {% endif %}
  {% do return({'upto': upto, 'batch': last[0][0] | int, 'generation': last[0][1] | int, 'snapshot': snapshot}) %}
{% endmacro %}
