{%- macro cdc_typed(text, column, value=none) -%}
{%- set kind = cdc_kind(column) | trim -%}
{%- if kind == 'string' -%}{{ text }}
{%- elif kind == 'bool' -%}case {{ text }} when 't' then true when 'f' then false end
{%- else -%}
  {%- set value = value or _cdc_value(text, column) -%}
case when {{ cdc_canonical(value, column) }} = {{ text }} then {{ value }} end
{%- endif -%}
{%- endmacro -%}
