{% macro cdc_clears(segment) -%}
array({% for clear in segment.clears %}named_struct('c', {{ clear.commit }}L, 'o', {{ clear.ordinal }}L, 'e', {{ clear.end }}L){{ ', ' if not loop.last }}{% endfor %})
{%- endmacro %}
