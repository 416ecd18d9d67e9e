{%- macro cdc_part(image, attnum) -%}{{ image }}[{{ attnum - 1 }}]{%- endmacro -%}
