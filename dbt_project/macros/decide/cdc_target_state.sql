{% macro cdc_target_state(relation) %}
  {% if relation is none or relation.is_view %}{% do return({}) %}{% endif %}
  {% set properties = {} %}
  {% for key, value in cdc_rows("show tblproperties " ~ relation) %}{% do properties.update({key: value | string}) %}{% endfor %}
  {# A compaction repeats the position that it found, so the last build decides if it is still known. A build never goes
     back, so the last one has the highest position. It need not have the latest time: clocks step back. #}
  {% set found = cdc_rows("select 's' || s.summary['cdc.applied-batch'], 's' || s.summary['cdc.applied-lsn'] from " ~ relation
      ~ ".history h join " ~ relation ~ ".snapshots s on s.snapshot_id = h.snapshot_id"
      ~ " where h.is_current_ancestor and s.summary['cdc.applied-batch'] is not null order by s.operation = 'replace',"
      ~ " cast(s.summary['cdc.applied-batch'] as bigint) desc, cast(s.summary['cdc.applied-lsn'] as bigint) desc limit 1") %}
  {% set snapshot = properties['current-snapshot-id'] if properties['current-snapshot-id'] != 'none' else none %}
  {% if not found or 'cdc.schema-id' not in properties %}{% do return({'snapshot': snapshot}) %}{% endif %}
  {% do return({'relid': properties['cdc.relid'] | int, 'schema_id': properties['cdc.schema-id'] | int,
                'generation': properties['cdc.generation'] | int, 'snapshot': snapshot,
                'batch': found[0][0][1:] | int, 'lsn': found[0][1][1:] | int}) %}
{% endmacro %}
