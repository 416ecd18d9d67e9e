{% macro cdc_skipped(decision) %}
  {% call noop_statement('main', 'SKIP ' ~ decision.reason, 'SKIP') %}{% endcall %}
{% endmacro %}
