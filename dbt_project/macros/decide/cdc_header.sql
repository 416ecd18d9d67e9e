{% macro cdc_header(plan, decision) -%}
-- cdc {{ tojson({'action': decision.action, 'reason': decision.reason, 'relid': plan.relid, 'upto': plan.position.get('upto'),
                  'batch': plan.position.get('batch'), 'generation': plan.position.get('generation'),
                  'schema_id': plan.get('schema_id'), 'layer': plan.get('layer'), 'comment': plan.get('comment'),
                  'target': decision.get('target'), 'since': plan.found.since if plan.found else decision.get('target', {}).get('snapshot'),
                  'match': decision.get('match'), 'matched': decision.get('matched'),
                  'added': decision.get('added'), 'columns': decision.get('columns')}, sort_keys=true) }}
{% endmacro %}
