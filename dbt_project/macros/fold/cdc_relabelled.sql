{%- macro cdc_relabelled(column) -%}
case {% for era in column.relabel %}when from_lsn >= {{ era.since }} then {% if era.labels %}case s{{ column.attnum }}
{%- for old, new in era.labels.items() %} when {{ cdc_literal(old) }} then {{ cdc_literal(new) }}{% endfor %} else s{{ column.attnum }} end
{%- else %}s{{ column.attnum }}{% endif %} {% endfor %}else s{{ column.attnum }} end
{%- endmacro -%}
