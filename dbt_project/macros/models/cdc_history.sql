{% macro cdc_history(relid) -%}
  {{ config(materialized='cdc_table') }}
  {%- if not execute -%}select 1 from {{ cdc_log() }}{%- else -%}
  {%- set plan = cdc_plan(relid, 'history') -%}
  {%- set decision = cdc_decide(plan) -%}
  {%- set body -%}
  {%- if decision.action == 'rebuild' and plan.segments %}
{{ cdc_project(plan, cdc_fold(plan, whole=true), {'_cdc_from_lsn': 'from_lsn', '_cdc_to_lsn': 'to_lsn', '_cdc_doubtful': cdc_doubtful(plan)}) }}
  {%- elif decision.action == 'merge' %}
{{ cdc_merge_versions(plan, decision) }}
  {%- else %}
select 1
  {%- endif -%}
  {%- endset -%}
  {{ cdc_header(plan, decision) }}
{{ body }}
  {%- endif -%}
{%- endmacro %}
