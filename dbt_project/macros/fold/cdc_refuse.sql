{%- macro cdc_refuse(plan) -%}
{%- if plan.incomplete -%}cast(array() as array<bigint>)
{%- else -%}array(cast(raise_error('table {{ plan.relid }}: the log removes a row that it never put; run cdc repair') as bigint))
{%- endif -%}
{%- endmacro -%}
