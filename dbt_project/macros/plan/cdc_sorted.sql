{% macro cdc_sorted(items) %}
  {% set order = {} %}
  {% for item in items %}
    {% do order.update({'%020d %020d %d' | format(item.commit, item.ordinal + 1, loop.index): item}) %}
  {% endfor %}
  {% set result = [] %}
  {% for key in order | sort %}
    {% do result.append(order[key]) %}
  {% endfor %}
  {% do return(result) %}
{% endmacro %}
