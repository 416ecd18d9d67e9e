{%- macro cdc_quote(name) -%}`{{ name.replace('`', '``') }}`{%- endmacro -%}
