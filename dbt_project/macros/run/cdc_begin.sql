{% macro cdc_begin() %}
  {% if execute and cdc_begins() %}
    {% if flags.EMPTY or invocation_args_dict.sample %}
      {% do exceptions.raise_compiler_error(('--empty' if flags.EMPTY else '--sample') ~ ": the toolkit's views would show "
          ~ ('nothing' if flags.EMPTY else 'a part') ~ " of the log; leave it out, or give it to a dbt project of your own") %}
    {% endif %}
    {% if adapter.cdc_replace is not defined and flags.WHICH != 'test' %}
      {% do exceptions.raise_compiler_error("the plugin of cdc-toolkit is not installed in the Python environment of this dbt, so no table can be replaced safely; install cdc-toolkit there, or run cdc build") %}
    {% endif %}
    {# `cdc build` provides the plans that it runs; a plain run uses those of the newest batch. #}
    {% if not env_var('CDC_RUN_PLANNED', '') %}
      {% if var('as_of_lsn', none) is not none %}
        {% do exceptions.raise_compiler_error("as_of_lsn: a plain dbt run builds at the newest LSN; run cdc build --as-of-lsn") %}
      {% elif load_relation(source('ops', 'plans')) is none %}
        {% do exceptions.raise_compiler_error(source('ops', 'plans').render() ~ ": no table has been planned yet; run cdc init, then cdc build") %}
      {% endif %}
      {% do cdc_keep('cdc_plans', cdc_plans_sql()) %}
    {% endif %}
    {% set p = cdc_position() %}
    {% if p is not none and not env_var('CDC_RUN_PLANNED', '') %}{% do cdc_keep('cdc_activity', cdc_activity_sql(p)) %}{% endif %}
  {% endif %}
{% endmacro %}
