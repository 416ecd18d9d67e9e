{% macro cdc_tag(relation, decision, snapshot) %}
  {% if cdc_tag_name(decision) %}
    {% do run_query("alter table " ~ relation ~ " create or replace tag `" ~ cdc_tag_name(decision) ~ "` as of version " ~ snapshot) %}
  {% endif %}
{% endmacro %}
