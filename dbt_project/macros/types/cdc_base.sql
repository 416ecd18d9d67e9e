{%- macro cdc_base(column) -%}{{ (column.base_type or column.type) if column.type_kind == 'd' else column.type }}{%- endmacro -%}
