{%- macro cdc_missing(column) -%}
{{ cdc_literal(column.missing if column.get('has_missing') else none) }}
{%- endmacro -%}
