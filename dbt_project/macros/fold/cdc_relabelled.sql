{%- macro cdc_relabelled(column) -%}
{%- set cell = 's' ~ column.attnum -%}
case {% for era in column.relabel %}when from_lsn >= {{ era.since }} then {{ cdc_relabel(cell, era.labels, era.nested) }} {% endfor %}else {{ cell }} end
{%- endmacro -%}
