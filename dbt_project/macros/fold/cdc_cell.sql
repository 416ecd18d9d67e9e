{%- macro cdc_cell(image, column) -%}
{%- if column.attnum == 0 -%}cast(null as string)
{%- elif not column.get('has_missing') -%}get({{ image }}, {{ column.attnum - 1 }})
{%- else -%}
case when size({{ image }}) >= {{ column.attnum }} then {{ image }}[{{ column.attnum - 1 }}] else {{ cdc_missing(column) }} end
{%- endif -%}
{%- endmacro -%}
