{% macro cdc_decide(plan) %}
  {% if flags.WHICH not in ['run', 'build'] %}{% do return({'action': 'rebuild', 'reason': 'compiled only'}) %}{% endif %}
  {% if not plan.known %}{% do return({'action': 'skip', 'reason': 'not captured at this LSN'}) %}{% endif %}
  {% if not plan.segments %}{% do return({'action': 'skip', 'reason': 'dropped at the source'}) %}{% endif %}
  {# A plain run may find the models from before a DDL. `cdc build` makes them first. #}
  {% if not plan.found and plan.get('name') and plan.name != this.identifier %}
    {% if plan.dropped %}{% do return({'action': 'skip', 'reason': 'dropped at the source'}) %}{% endif %}
    {% do exceptions.raise_compiler_error(this.render() ~ ": the source's table is " ~ plan.name ~ " now; run cdc models sync, or cdc build") %}
  {% endif %}
  {% if plan.found.damage %}{% do exceptions.raise_compiler_error(plan.found.damage) %}{% endif %}
  {% set target = plan.found.target or {} if plan.found else cdc_target_state(cdc_existing()) %}
  {% set rebuild, news = {'action': 'rebuild', 'target': target}, none %}
  {% if var('as_of_lsn', none) is not none %}{% do return(dict(rebuild, reason='as of an LSN')) %}{% endif %}
  {% set decided = plan.found.decision if plan.found else adapter.cdc_decide(plan, target) %}
  {# Another run has built the table further in the meantime, so it is right.
     If the table is beyond the log, it is not right: the table or the log was restored. #}
  {% if decided is none and target.batch <= (cdc_rows("select coalesce(max(batch_id), -1) from " ~ cdc_log() ~ " where kind = 'batch'")[0][0] | int) %}
    {% if flags.FULL_REFRESH %}
      {% do exceptions.raise_compiler_error(this.render() ~ ": another run has built it further than the position of this run; run the full refresh again") %}
    {% endif %}
    {% do return({'action': 'skip', 'reason': 'built further by another run'}) %}
  {% endif %}
  {% if flags.FULL_REFRESH %}{% do return(dict(rebuild, reason='full refresh')) %}{% endif %}
  {% if decided is none %}{% do return(dict(rebuild, reason='the table is ahead of the log')) %}{% endif %}
  {% if decided.action == 'merge' or (decided.action == 'skip' and not plan.found) %}
    {% set news = cdc_news(plan, target) %}
    {% if not plan.found %}{% set decided = adapter.cdc_decide(plan, target, news) %}{% endif %}
  {% endif %}
  {% do return(dict(decided, target=target, news=news)) %}
{% endmacro %}
