{% macro cdc_existing() %}
  {% do return(adapter.get_relation(database=this.database, schema=this.schema, identifier=this.identifier)) %}
{% endmacro %}
