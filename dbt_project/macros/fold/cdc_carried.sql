{%- macro cdc_carried(column, facts) -%}
{%- if column.attnum in facts.toast -%}c{{ column.attnum }}.v{%- else -%}{{ cdc_cell('new', column) }}{%- endif -%}
{%- endmacro -%}
