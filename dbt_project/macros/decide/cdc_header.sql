{% macro cdc_header(plan, decision) -%}
-- cdc {{ tojson({'action': decision.action, 'reason': decision.reason, 'relid': plan.relid, 'upto': plan.position.upto,
                  'batch': plan.position.batch, 'generation': plan.position.generation,
                  'schema_id': plan.version.schema_id if plan.state == 'ok' else none,
                  'comment': plan.version.table.get('comment') if plan.state == 'ok' else none,
                  'target': decision.get('target')}, sort_keys=true) }}
{% endmacro %}
