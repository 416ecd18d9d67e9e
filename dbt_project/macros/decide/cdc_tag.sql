{% macro cdc_tag(relation, decision) %}
  {% do run_query("alter table " ~ relation ~ " create or replace tag `g" ~ decision.generation ~ "_lsn_"
      ~ ('%016x' | format(decision.upto)) ~ "`") %}
{% endmacro %}
