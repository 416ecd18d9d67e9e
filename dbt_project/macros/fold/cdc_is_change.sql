{%- macro cdc_is_change() -%}op in ('I', 'U', 'D'){%- endmacro -%}
