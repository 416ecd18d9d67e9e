{% macro cdc_apply(relation, decision, changes) %}
  {# An outer join moves the whole table through a shuffle. An inner join with the changed keys, and an insert, do not. #}
  {% set kept, columns = cdc_kept(relation, 'changes', decision.relid), [] %}
  {% for name in decision.columns %}{% do columns.append(cdc_quote(name)) %}{% endfor %}
  {% do cdc_keep(kept, changes) %}
  {% do cdc_on_branch(relation, decision, [
      "merge into " ~ cdc_branch(relation) ~ " t using " ~ kept ~ " s on " ~ decision.match ~ " when matched then " ~ decision.matched,
      "insert into " ~ cdc_branch(relation) ~ " (" ~ columns | join(', ') ~ ") select " ~ columns | join(', ') ~ " from " ~ kept
      ~ " where " ~ decision.added]) %}
  {% for what in ['changes', 'new'] %}{% do cdc_forget(cdc_kept(relation, what, decision.relid)) %}{% endfor %}
{% endmacro %}
