{#- history.<table>: one row per row version, valid at L when _cdc_from_lsn <= L and (_cdc_to_lsn is null or L < _cdc_to_lsn). -#}

{% macro cdc_history(relid) -%}
  {{ config(materialized='cdc_history') }}
  {%- if not execute -%}select 1 from {{ cdc_log() }}{%- else -%}
  {%- set plan = cdc_plan(relid, whole=true) -%}
  {%- set decision = cdc_decide(plan, cdc_existing(), mergeable=false) -%}
  {{ cdc_header(plan, decision) }}
  {%- if decision.action == 'rebuild' and plan.state == 'ok' %}
{{ cdc_project(plan, cdc_fold(plan, whole=true), {'_cdc_from_lsn': 'from_lsn', '_cdc_to_lsn': 'to_lsn', '_cdc_doubtful': cdc_doubtful(plan)}) }}
  {%- else %}
select 1
  {%- endif -%}
  {%- endif -%}
{%- endmacro %}

{#- Whether a version overlaps a stretch in which the truth is unknown: from a gap to the next copy of the whole table.

The copy of a part heals nothing by itself. A version that began behind it and was there at a check that found every row
right is exact all its life; one that ended before the check is not known.
-#}
{% macro cdc_doubtful(plan) -%}
{%- set parts = [] -%}
{%- for gap in plan.gaps -%}
  {%- set ends = {} -%}
  {%- for baseline in plan.healings | reverse if (baseline.commit, baseline.ordinal) > (gap.commit, gap.ordinal) -%}
    {%- do ends.update({baseline.scope: baseline.end, 'any': baseline.end}) -%}
  {%- endfor -%}
  {%- do parts.append('((to_lsn is null or to_lsn > ' ~ gap.end ~ ')'
      ~ (' and from_lsn < ' ~ ends['all'] if 'all' in ends else '')
      ~ (' and not (from_lsn >= ' ~ ends['any'] ~ ' and (to_lsn is null or to_lsn > ' ~ ends['check'] ~ '))' if 'check' in ends else '')
      ~ ')') -%}
{%- endfor -%}
{{ parts | join(' or ') if parts else 'false' }}
{%- endmacro %}

{% materialization cdc_history, adapter='spark' %}
  {%- set relation = api.Relation.create(identifier=model['alias'], schema=schema, database=database, type='table') -%}
  {%- set lines = sql.strip().split('\n') -%}
  {%- set decision = fromjson(lines[0][7:]) -%}
  {% if decision.action == 'skip' %}
    {% do cdc_skipped(decision) %}
  {% else %}
    {% call statement('main') %}
      {{ cdc_replace(relation, decision, lines[1:] | join('\n'), "'format-version' = '2'") }}
    {% endcall %}
  {% endif %}
  {{ return({'relations': [relation]}) }}
{% endmaterialization %}
