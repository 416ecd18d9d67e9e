{% macro cdc_control_sql(p, relid=none) -%}
select relid, kind, schema_id, commit_lsn, ordinal, end_lsn, batch_id, payload
from {{ cdc_events_at(p) }}
where kind in ('schema', 'baseline', 'gap', 'truncate') and generation = {{ p.generation }} and batch_id <= {{ p.batch }}
  {%- if relid is not none %} and relid = {{ relid }}{% endif %}
{%- endmacro %}
