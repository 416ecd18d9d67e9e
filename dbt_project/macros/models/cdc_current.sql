{% macro cdc_current(relid) -%}
  {{ config(materialized='cdc_table') }}
  {%- if not execute -%}select 1 from {{ cdc_log() }}{%- else -%}
  {%- set plan = cdc_plan(relid, 'current') -%}
  {%- set decision = cdc_decide(plan) -%}
  {%- set body -%}
  {%- if decision.action == 'rebuild' and plan.segments %}
{{ cdc_project(plan, cdc_fold(plan), {'_cdc_from_lsn': 'from_lsn'}) }}
  {%- elif decision.action == 'merge' %}
{{ cdc_merge(plan, decision) }}
  {%- else %}
select 1
  {%- endif -%}
  {%- endset -%}
  {{ cdc_header(plan, decision) }}
{{ body }}
  {%- endif -%}
{%- endmacro %}
