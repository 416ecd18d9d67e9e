{% macro cdc_doubtful(plan) -%}
{%- set parts = [] -%}
{%- for doubt in plan.doubts -%}
  {%- do parts.append('((to_lsn is null or to_lsn > ' ~ doubt.since ~ ')'
      ~ (' and from_lsn < ' ~ doubt.copied if doubt.copied is not none else '')
      ~ (' and not (from_lsn >= ' ~ doubt.part ~ ' and (to_lsn is null or to_lsn > ' ~ doubt.confirmed ~ '))' if doubt.confirmed is not none else '')
      ~ ')') -%}
{%- endfor -%}
{{ parts | join(' or ') if parts else 'false' }}
{%- endmacro %}
