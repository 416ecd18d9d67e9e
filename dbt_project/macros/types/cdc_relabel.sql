{%- macro cdc_relabel(cell, labels, nested) -%}
{%- set text = 'part' if nested else cell -%}
{%- set parts = "array_join(transform(split(" ~ cell ~ ", r'(?<=[{}()\\[\\],\"])|(?=[{}()\\[\\],\"])'), part -> " -%}
{%- if not labels -%}{{ cell }}
{%- else -%}{{ parts if nested }}case {{ text }}
{%- for old, new in labels.items() %} when {{ cdc_literal(old) }} then {{ cdc_literal(new) }}{% endfor %} else {{ text }} end{{ "), '')" if nested }}
{%- endif -%}
{%- endmacro -%}
