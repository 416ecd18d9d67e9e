{#- What a target table says about itself, and what therefore has to be done to bring it to the run's position. -#}

{#- (relid, schema_id, generation, snapshot, batch, lsn) of an existing target, or none.

The position is that of the nearest ancestor snapshot that carries one: compaction does not move it, and neither does a
change made by hand, which stays for `cdc check` to find. After a rollback it is the older one.
-#}
{% macro cdc_target_state(relation) %}
  {% if relation is none %}{% do return(none) %}{% endif %}
  {% set properties = {} %}
  {% for key, value in cdc_rows("show tblproperties " ~ relation) %}{% do properties.update({key: value | string}) %}{% endfor %}
  {% set found = cdc_rows("select 's' || s.summary['cdc.applied-batch'], 's' || s.summary['cdc.applied-lsn'] from " ~ relation
      ~ ".history h join " ~ relation ~ ".snapshots s on s.snapshot_id = h.snapshot_id"
      ~ " where h.is_current_ancestor and s.summary['cdc.applied-batch'] is not null order by h.made_current_at desc limit 1") %}
  {% if not found or 'cdc.schema-id' not in properties %}{% do return(none) %}{% endif %}
  {% do return({'relid': properties['cdc.relid'] | int, 'schema_id': properties['cdc.schema-id'] | int,
                'generation': properties['cdc.generation'] | int, 'snapshot': properties['current-snapshot-id'],
                'batch': found[0][0][1:] | int, 'lsn': found[0][1][1:] | int}) %}
{% endmacro %}

{#- What is new for a table since a target's position: counts and the facts that the fold needs. -#}
{% macro cdc_news(plan, target) %}
  {% set p = plan.position %}
  {% if target.batch == p.batch and target.lsn == p.upto %}{% do return({'n': 0}) %}{% endif %}
  {# cdc_activity tells batches apart, not the positions inside the batch that the target stopped in. #}
  {% set source = 'cdc_activity' if p.batch - 50 < target.batch < p.batch else
      '(' ~ cdc_activity_sql(p, plan.relid, target) ~ ')' %}
  {% set row = cdc_rows("select coalesce(sum(n), 0), coalesce(min(low), 0), coalesce(max(high), 0), coalesce(sum(control), 0),"
      ~ " array_join(collect_set(nullif(toast, '')), ','), coalesce(sum(moved), 0), coalesce(sum(moved_unchanged), 0)"
      ~ " from " ~ source ~ " where relid = " ~ plan.relid ~ " and (batch_id > " ~ target.batch ~ " or high >= " ~ target.lsn ~ ")"
      ~ " and low < " ~ p.upto)[0] %}
  {% do return({'n': row[0] | int, 'low': row[1] | int, 'high': row[2] | int, 'control': row[3] | int,
                'facts': cdc_facts(row[4], row[5], row[6])}) %}
{% endmacro %}

{#- `skip`, `merge` (with target and news) or `rebuild` (with the reason). -#}
{% macro cdc_decide(plan, relation, mergeable=true) %}
  {% set p = plan.position %}
  {% if flags.WHICH not in ['run', 'build'] %}{% do return({'action': 'rebuild', 'reason': 'compiled only'}) %}{% endif %}
  {% if plan.state == 'dropped' %}{% do return({'action': 'skip', 'reason': 'dropped at the source'}) %}{% endif %}
  {% if plan.state != 'ok' %}{% do return({'action': 'skip', 'reason': 'not captured at this LSN'}) %}{% endif %}
  {% if var('as_of_lsn', none) is not none %}{% do return({'action': 'rebuild', 'reason': 'as of an LSN'}) %}{% endif %}
  {% set target = cdc_target_state(relation) %}
  {% if flags.FULL_REFRESH %}{% do return({'action': 'rebuild', 'reason': 'full refresh'}) %}{% endif %}
  {% if target is none %}{% do return({'action': 'rebuild', 'reason': 'no table with a position'}) %}{% endif %}
  {% if (target.relid, target.generation) != (plan.relid, p.generation) %}
    {% do return({'action': 'rebuild', 'reason': 'another table had this name'}) %}
  {% elif target.lsn > p.upto or target.batch > p.batch %}
    {# Another run got further meanwhile: what stands is right. A table beyond the log is not: one of them was put back. #}
    {% if target.batch <= (cdc_rows("select coalesce(max(batch_id), -1) from " ~ cdc_log() ~ " where kind = 'batch'")[0][0] | int) %}
      {% do return({'action': 'skip', 'reason': 'built further by another run'}) %}
    {% endif %}
    {% do return({'action': 'rebuild', 'reason': 'the table is ahead of the log'}) %}
  {% elif target.schema_id != plan.version.schema_id %}
    {% do return({'action': 'rebuild', 'reason': 'schema version ' ~ plan.version.schema_id}) %}
  {% endif %}
  {% set news = cdc_news(plan, target) %}
  {% if news.n == 0 %}
    {% do return({'action': 'skip', 'reason': 'nothing new'}) %}
  {% elif news.control %}
    {% do return({'action': 'rebuild', 'reason': 'a baseline, a truncate or a schema version'}) %}
  {% elif news.low < target.lsn %}
    {% do return({'action': 'rebuild', 'reason': 'new events below the applied position'}) %}
  {% elif not mergeable or not plan.segments[-1].keyed %}
    {% do return({'action': 'rebuild', 'reason': 'new events'}) %}
  {% endif %}
  {% do return({'action': 'merge', 'reason': 'new events', 'target': target, 'news': news}) %}
{% endmacro %}

{#- CREATE OR REPLACE with everything that the next run asks of the table. Keeps its snapshots and tags. -#}
{% macro cdc_replace(relation, decision, sql, version_properties) -%}
create or replace table {{ relation }} using iceberg
{% if decision.comment %}comment {{ cdc_literal(decision.comment) }}
{% endif %}tblproperties ('cdc.relid' = '{{ decision.relid }}', 'cdc.schema-id' = '{{ decision.schema_id }}', 'cdc.generation' = '{{ decision.generation }}',
  {{ version_properties }})
as {{ sql }}
{%- endmacro %}

{#- The first line of a compiled model says what its materialization does with the rest. -#}
{% macro cdc_header(plan, decision) -%}
-- cdc {{ tojson({'action': decision.action, 'reason': decision.reason, 'relid': plan.relid, 'upto': plan.position.upto,
                  'batch': plan.position.batch, 'generation': plan.position.generation,
                  'schema_id': plan.version.schema_id if plan.state == 'ok' else none,
                  'comment': plan.version.table.get('comment') if plan.state == 'ok' else none,
                  'target': decision.get('target')}, sort_keys=true) }}
{% endmacro %}

{% macro cdc_skipped(decision) %}
  {% call noop_statement('main', 'SKIP ' ~ decision.reason, 'SKIP') %}{% endcall %}
{% endmacro %}

{#- An Iceberg tag that names this position. It stays until `cdc maintain` lets it go: a view may rest on it. -#}
{% macro cdc_tag(relation, decision) %}
  {% do run_query("alter table " ~ relation ~ " create or replace tag `g" ~ decision.generation ~ "_lsn_"
      ~ ('%016x' | format(decision.upto)) ~ "`") %}
{% endmacro %}
