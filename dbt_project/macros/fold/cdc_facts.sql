{% macro cdc_facts(toast, moved, chained, changed=0, copied=0) %}
  {% set attnums = [] %}
  {% for text in (toast | string).split(',') if text and toast is not none %}
    {% if text | int not in attnums %}{% do attnums.append(text | int) %}{% endif %}
  {% endfor %}
  {% do return({'toast': attnums, 'moved': (moved or 0) | int > 0, 'chained': (chained or 0) | int > 0,
                'changed': changed | int, 'copied': copied | int}) %}
{% endmacro %}
