{% macro cdc_history(relid) -%}
  {{ config(materialized='cdc_history') }}
  {%- if not execute -%}select 1 from {{ cdc_log() }}{%- else -%}
  {%- set plan = cdc_plan(relid, 'history') -%}
  {%- set decision = cdc_decide(plan, mergeable=false) -%}
  {{ cdc_header(plan, decision) }}
  {%- if decision.action == 'rebuild' and plan.segments %}
{{ cdc_project(plan, cdc_fold(plan, whole=true), {'_cdc_from_lsn': 'from_lsn', '_cdc_to_lsn': 'to_lsn', '_cdc_doubtful': cdc_doubtful(plan)}) }}
  {%- else %}
select 1
  {%- endif -%}
  {%- endif -%}
{%- endmacro %}
