{%- macro cdc_refuse(plan, whole) -%}
{%- set stale = [] -%}
{%- for gap in plan.gaps if whole or (gap.commit, gap.ordinal) > (plan.base.commit, plan.base.ordinal) -%}{%- do stale.append(gap) -%}{%- endfor -%}
{%- if stale -%}cast(array() as array<bigint>)
{%- else -%}array(cast(raise_error('table {{ plan.relid }}: the log removes a row that it never put; run cdc repair') as bigint))
{%- endif -%}
{%- endmacro -%}
