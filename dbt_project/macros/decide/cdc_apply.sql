{% macro cdc_apply(relation, decision, changes) %}
  {# An outer join moves the whole table through a shuffle. An inner join with the changed keys, and an insert, do not. #}
  {% set kept, branch, columns = cdc_kept(relation, 'changes', decision.relid), 'cdc_build_' ~ invocation_id.replace('-', ''), [] %}
  {% for name in decision.columns %}{% do columns.append(cdc_quote(name)) %}{% endfor %}
  {% do cdc_keep(kept, changes) %}
  {% do run_query("alter table " ~ relation ~ " create or replace branch " ~ branch ~ " as of version " ~ decision.target.snapshot) %}
  {% do run_query("merge into " ~ relation ~ ".branch_" ~ branch ~ " t using " ~ kept ~ " s on " ~ decision.match
      ~ " when matched then " ~ decision.matched) %}
  {% do run_query("insert into " ~ relation ~ ".branch_" ~ branch ~ " (" ~ columns | join(', ') ~ ") select " ~ columns | join(', ')
      ~ " from " ~ kept ~ " where " ~ decision.added) %}
  {% call statement('main') %}
    call system.fast_forward(table => '{{ relation }}', branch => 'main', to => '{{ branch }}')
  {% endcall %}
  {% do run_query("alter table " ~ relation ~ " drop branch " ~ branch) %}
  {% for what in ['changes', 'new'] %}{% do cdc_forget(cdc_kept(relation, what, decision.relid)) %}{% endfor %}
{% endmacro %}
