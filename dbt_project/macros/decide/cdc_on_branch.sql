{% macro cdc_on_branch(relation, decision, statements) %}
  {% set branch = cdc_branch(relation).split('.branch_')[-1] %}
  {% do run_query("alter table " ~ relation ~ " create or replace branch " ~ branch ~ " as of version " ~ decision.target.snapshot) %}
  {% for statement in statements %}{% do adapter.cdc_write(statement, cdc_summary(decision)) %}{% endfor %}
  {% set built = cdc_rows("select 's' || snapshot_id from " ~ relation ~ ".refs where name = '" ~ branch ~ "'")[0][0][1:] %}
  {% call statement('main') %}
    call system.fast_forward(table => '{{ relation }}', branch => 'main', to => '{{ branch }}')
  {% endcall %}
  {% do run_query("alter table " ~ relation ~ " drop branch " ~ branch) %}
  {% do cdc_tag(relation, decision, built) %}
{% endmacro %}
