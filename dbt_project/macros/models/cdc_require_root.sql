{% macro cdc_require_root(relid, generation, schema_id) %}
  {% set log, p = cdc_log(), cdc_position() if execute and flags.WHICH in ['run', 'build'] else none %}
  {% if p is not none %}
    {% set rows = cdc_rows("select max_by(schema_id, struct(commit_lsn, ordinal)) from " ~ cdc_events_at(p) ~ " where kind = 'schema'"
        ~ " and relid = " ~ relid ~ " and generation = " ~ p.generation ~ " and batch_id <= " ~ p.batch ~ " and commit_lsn < " ~ p.upto) %}
    {% if p.generation != generation or rows[0][0] != schema_id %}
      {% do exceptions.raise_compiler_error(this.render() ~ ": the source's table, or its partitions, changed after this model was made; run cdc models sync, or cdc build") %}
    {% endif %}
  {% endif %}
{% endmacro %}
