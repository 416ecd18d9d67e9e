{%- macro cdc_or_none(columns) -%}
{%- do return(columns or [{'attnum': 0}]) -%}
{%- endmacro -%}
