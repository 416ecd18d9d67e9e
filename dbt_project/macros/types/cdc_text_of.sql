{%- macro cdc_text_of(lake_name, column, prefix='', canonical=none) -%}
{%- set value = prefix ~ cdc_quote(lake_name) -%}
{%- if (cdc_kind(column) | trim) == 'string' -%}{{ value }}
{%- else -%}coalesce(concat(try_element_at({{ prefix }}_cdc_text, {{ cdc_literal(lake_name) }}), if({{ value }} is null, '', '\u0000 beside a typed value')), {{ canonical or cdc_canonical(value, column) }})
{%- endif -%}
{%- endmacro -%}
