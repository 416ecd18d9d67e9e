{% macro cdc_plan(relid, layer) %}
  {% set rows = cdc_rows("select plan, upto, batch_id, generation, snapshot, found from " ~ cdc_plans()
      ~ " where relid = " ~ relid ~ " and layer = '" ~ layer ~ "'") %}
  {% if not rows %}{% do return({'relid': relid, 'known': false, 'dropped': false, 'found': none, 'position': {}}) %}{% endif %}
  {% set plan, upto, batch, generation, snapshot, found = rows[0] %}
  {% do return(dict(fromjson(plan), known=true, found=fromjson(found) if found else none, position={'upto': upto | int, 'batch': batch | int,
                    'generation': generation | int, 'snapshot': snapshot[1:]})) %}
{% endmacro %}
