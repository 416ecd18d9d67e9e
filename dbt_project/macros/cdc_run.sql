{#- A run's position: fixed once in on-run-start, read by every model, written into every table's own commit. -#}

{#- An LSN as a number, from `X/Y` or a number. -#}
{% macro cdc_lsn(value) -%}
  {%- set text = value | string -%}
  {%- if '/' in text -%}
    {%- set high, low = text.split('/') -%}
    {{ (high | int(-1, 16)) * 4294967296 + (low | int(-1, 16)) }}
  {%- else -%}
    {{ text | int }}
  {%- endif -%}
{%- endmacro %}

{% macro cdc_lsn_text(value) -%}
  {{ '%X/%X' | format(value // 4294967296, value % 4294967296) }}
{%- endmacro %}

{#- Rows of a query as lists, so that callers need not know agate. -#}
{% macro cdc_rows(query) %}
  {% set rows = [] %}
  {% for row in run_query(query).rows %}
    {% do rows.append(row.values() | list) %}
  {% endfor %}
  {% do return(rows) %}
{% endmacro %}

{#- The log, as dbt's source. A model calls it outside `execute` too: dbt learns what depends on what while it parses. -#}
{% macro cdc_log() %}
  {% do return(source('raw', 'events')) %}
{% endmacro %}

{#- Read (upto, batch, snapshot, generation) from the ledger, or from what `cdc build` read. -#}
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

{#- on-run-start. Small parts of the log that every model asks for are read once and kept for the run. -#}
{% macro cdc_begin() %}
  {% if execute and flags.WHICH in ['run', 'build', 'test'] %}
    {% set p = cdc_read_position() %}
    {% do run_query("create or replace temporary view cdc_position as select " ~ p.upto ~ "L as upto, " ~ p.batch ~ "L as batch, "
        ~ p.generation ~ " as generation, 's" ~ p.snapshot ~ "' as snapshot") %}
    {% do cdc_keep('cdc_control', cdc_control_sql(p)) %}
    {% do cdc_keep('cdc_activity', cdc_activity_sql(p)) %}
    {% for name, value in {'applied-batch': p.batch, 'applied-lsn': p.upto, 'generation': p.generation}.items() %}
      {% do run_query("set `spark.sql.iceberg.snapshot-property.cdc." ~ name ~ "`=" ~ value) %}
    {% endfor %}
  {% endif %}
{% endmacro %}

{#- Keep a query's rows in memory for this session, under a name. -#}
{% macro cdc_keep(name, query) %}
  {% do run_query("drop view if exists " ~ name) %}
  {% do run_query("cache table " ~ name ~ " as " ~ query) %}
{% endmacro %}

{% macro cdc_end() %}
  {% if execute %}
    {% for name in ['applied-batch', 'applied-lsn', 'generation'] %}
      {% do run_query("reset `spark.sql.iceberg.snapshot-property.cdc." ~ name ~ "`") %}
    {% endfor %}
    {% for name in ['cdc_control', 'cdc_activity', 'cdc_position'] %}{% do run_query("drop view if exists " ~ name) %}{% endfor %}
  {% endif %}
{% endmacro %}

{#- The position of this run. Only commands without on-run-start (compile, show) read the ledger themselves. -#}
{% macro cdc_position() %}
  {% if flags.WHICH in ['run', 'build', 'test'] %}
    {% set row = cdc_rows("select upto, batch, generation, snapshot from cdc_position")[0] %}
    {% do return({'upto': row[0] | int, 'batch': row[1] | int, 'generation': row[2] | int, 'snapshot': row[3][1:]}) %}
  {% endif %}
  {% do return(cdc_read_position()) %}
{% endmacro %}

{% macro cdc_events_at(p) -%}
{{ cdc_log() }} version as of {{ p.snapshot }}
{%- endmacro %}

{% macro cdc_control_sql(p, relid=none) -%}
select relid, kind, schema_id, commit_lsn, ordinal, end_lsn, batch_id, payload
from {{ cdc_events_at(p) }}
where kind in ('schema', 'baseline', 'gap', 'truncate') and generation = {{ p.generation }} and batch_id <= {{ p.batch }}
  {%- if relid is not none %} and relid = {{ relid }}{% endif %}
{%- endmacro %}

{#- What happened lately, per table and batch: tells without a scan each which tables have anything new.

A batch may hold events at or above its own position (a repair's baseline); `floor_lsn` brings those of older batches in.
-#}
{% macro cdc_activity_sql(p, relid=none, target=none) -%}
select relid, batch_id, min(commit_lsn) as low, max(commit_lsn) as high, count(*) as n,
  count_if(kind not in ('row', 'schema')) as control,
  count_if(op = 'U' and old_kind is not null) as moved,
  count_if(op = 'U' and old_kind is not null and size(unchanged) > 0) as moved_unchanged,
  array_join(array_distinct(flatten(collect_set(unchanged))), ',') as toast
from {{ cdc_events_at(p) }}
where kind in ('row', 'truncate', 'schema', 'baseline', 'gap') and generation = {{ p.generation }} and batch_id <= {{ p.batch }}
  {%- if target is not none %}
  and relid = {{ relid }} and (batch_id > {{ target.batch }} or commit_lsn >= {{ target.lsn }})
  {%- else %}
  and (batch_id > {{ p.batch - 50 }} or commit_lsn >= (
    select coalesce(max(cast(get_json_object(payload, '$.complete_to') as bigint)), 0)
    from {{ cdc_events_at(p) }} where kind = 'batch' and batch_id <= {{ p.batch - 50 }}))
  {%- endif %}
group by relid, batch_id
{%- endmacro %}
