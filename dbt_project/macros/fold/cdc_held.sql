{%- macro cdc_held(attnum, columns) -%}
  {{ cdc_cell('new', columns | selectattr('attnum', 'equalto', attnum) | first) }}
{%- endmacro -%}
