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
