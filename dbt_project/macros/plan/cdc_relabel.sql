{% macro cdc_relabel(versions, baselines, column) %}
  {% set now, result = {}, [] %}
  {% for entry in column.get('enum_labels') or [] %}
    {% do now.update({entry.oid | string: entry.label}) %}
  {% endfor %}
  {% for baseline in baselines if now %}
    {% set next = baselines[loop.index] if not loop.last else none %}
    {% set last = {'labels': []} %}
    {% for version in versions if next is none or (version.commit, version.ordinal) < (next.commit, next.ordinal - 1) %}
      {% for other in version.table.columns if other.attnum == column.attnum and other.type_oid == column.type_oid %}
        {% do last.update({'labels': (other.get('former_labels') or []) + (other.get('enum_labels') or [])}) %}
      {% endfor %}
    {% endfor %}
    {% set labels = {} %}
    {% for entry in last.labels if now.get(entry.oid | string, entry.label) != entry.label %}
      {% do labels.update({entry.label: now[entry.oid | string]}) %}
    {% endfor %}
    {% do result.insert(0, {'from': baseline.end, 'labels': labels}) %}
  {% endfor %}
  {% do return(result if result | selectattr('labels') | list else []) %}
{% endmacro %}
