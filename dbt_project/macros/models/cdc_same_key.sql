{%- macro cdc_same_key(column, text) -%}
{#- A whole number has one text, so that no row of the table has to be printed. -#}
{%- if (cdc_kind(column) | trim) in ['int', 'bigint'] -%}t.{{ cdc_quote(column.lake) }} = cast({{ text }} as {{ cdc_spark_type(column) | trim }})
{%- else -%}{{ cdc_text_of(column.lake, column, 't.') | trim }} = {{ text }}
{%- endif -%}
{%- endmacro -%}
