{%- macro cdc_relabelled(column) -%}
{%- set cell = 's' ~ column.attnum -%}
{%- set text = 'part' if column.nested else cell -%}
{%- set parts = "array_join(transform(split(" ~ cell ~ ", r'(?<=[{}()\\[\\],\"])|(?=[{}()\\[\\],\"])'), part -> " -%}
case {% for era in column.relabel %}when from_lsn >= {{ era.since }} then {% if era.labels %}{{ parts if column.nested }}case {{ text }}
{%- for old, new in era.labels.items() %} when {{ cdc_literal(old) }} then {{ cdc_literal(new) }}{% endfor %} else {{ text }} end{{ "), '')" if column.nested }}
{%- else %}{{ cell }}{% endif %} {% endfor %}else {{ cell }} end
{%- endmacro -%}
