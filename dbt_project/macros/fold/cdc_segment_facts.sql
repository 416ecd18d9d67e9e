{% macro cdc_segment_facts(plan, segment, columns) %}
  {% if plan.found and plan.found.whole %}
    {% set whole = plan.found.whole %}
    {% do return(cdc_facts(columns, whole.toast, whole.moved, whole.chained, whole.changed, whole.copied)) %}
  {% endif %}
  {% set events = cdc_of_segment(plan, segment) %}
  {% set row = cdc_rows("select array_join(array_sort(array_distinct(flatten(collect_set(unchanged)))), ','),"
      ~ " count_if(op = 'U' and old_kind is not null),"
      ~ " count_if(op = 'U' and old_kind is not null and size(unchanged) > 0), count(*),"
      ~ " (select count(*) " ~ events ~ " and op = 'R')"
      ~ " " ~ events ~ " and " ~ cdc_is_change())[0] %}
  {% do return(cdc_facts(columns, row[0], row[1], row[2], row[3], row[4])) %}
{% endmacro %}
