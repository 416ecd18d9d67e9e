{% macro cdc_plan(relid, layer) %}
  {% set rows = cdc_rows("select plan, upto, batch_id, generation, snapshot from " ~ cdc_plans()
      ~ " where relid = " ~ relid ~ " and layer = '" ~ layer ~ "'") %}
  {% if not rows %}{% do return({'relid': relid, 'known': false, 'dropped': false, 'position': {}}) %}{% endif %}
  {% set plan, upto, batch, generation, snapshot = rows[0] %}
  {% do return(dict(fromjson(plan), known=true, position={'upto': upto | int, 'batch': batch | int,
                    'generation': generation | int, 'snapshot': snapshot[1:]})) %}
{% endmacro %}
