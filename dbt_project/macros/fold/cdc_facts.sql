{% macro cdc_facts(columns, toast, moved, chained, changed=0, copied=0) %}
  {# A column that was dropped since is not filled any more. #}
  {% set attnums, present = [], columns | map(attribute='attnum') | list %}
  {% for text in (toast | string).split(',') if text and toast is not none %}
    {% if text | int in present and text | int not in attnums %}{% do attnums.append(text | int) %}{% endif %}
  {% endfor %}
  {% do return({'toast': attnums, 'moved': (moved or 0) | int > 0, 'chained': (chained or 0) | int > 0 and attnums | length > 0,
                'changed': changed | int, 'copied': copied | int}) %}
{% endmacro %}
