{#- Rules that dbt has no test for; `cdc models sync` states them of each table. -#}

{#- No two rows share a key of several columns. A value that its typed column cannot carry is NULL there, and told apart
by `_cdc_text`. -#}
{% test cdc_unique(model, columns) %}
select {{ columns | join(', ') }}, count(*) as copies
from {{ model }}
group by {{ columns | join(', ') }}, to_json(_cdc_text)
having count(*) > 1
{% endtest %}

{#- A value, or the length of a text, is within the limits of the source's type. -#}
{% test cdc_between(model, column_name, low, high, length=false) %}
{%- set value = 'char_length(' ~ column_name ~ ')' if length else column_name %}
select {{ column_name }}
from {{ model }}
where {{ value }} not between {{ low }} and {{ high }}
{% endtest %}

{#- The row versions of history that are valid at the last proven LSN are the rows that were proven there.

A proof says nothing of a table whose schema has another version since, nor does a history that ends before it.
-#}
{% test cdc_as_proven(model, relid) %}
{%- set proof = cdc_last_proof(model, relid) if execute else none %}
{%- if proof is none %}
select 1 as nothing where false
{%- else %}
{%- set cells = [] %}
{%- for column in proof.columns %}
  {#- As the source's texts: which floats their type carries is another matter of how Java prints them. #}
  {%- do cells.append((cdc_text_of(column.lake, column) | trim) ~ ' as ' ~ cdc_quote(column.lake)) %}
{%- endfor %}
{%- set cells = cells | join(', ') or 'true as row' %}
with history as (
  select {{ cells }} from {{ model }}
  where _cdc_from_lsn <= {{ proof.lsn }} and (_cdc_to_lsn is null or _cdc_to_lsn > {{ proof.lsn }})),
proven as (select {{ cells }} from current.{{ proof.relation }} version as of {{ proof.snapshot }})
select 'not in history' as _cdc_found, * from (select * from proven except all select * from history)
union all
select 'not proven' as _cdc_found, * from (select * from history except all select * from proven)
{%- endif %}
{% endtest %}

{#- (relation, lsn, snapshot, columns) of a table's last proof, if its history can be held against it; or none. -#}
{% macro cdc_last_proof(history, relid) %}
  {% if adapter.get_relation(database=none, schema='ops', identifier='published') is none %}{% do return(none) %}{% endif %}
  {% set plan = cdc_plan(relid, whole=true) %}
  {% set rows = cdc_rows("select relation, lsn, 's' || snapshot_id from ops.published where relid = " ~ relid
      ~ " and relation is not null and startswith(tag, 'proven_g" ~ plan.position.generation ~ "_')") %}
  {% set target = cdc_target_state(history) if rows and plan.state == 'ok' else none %}
  {% if target is none %}{% do return(none) %}{% endif %}
  {% set lsn, news = rows[0][1] | int, cdc_news(plan, target) %}
  {% set ours = (target.relid, target.generation) == (plan.relid, plan.position.generation) %}
  {% set reached = target.lsn >= lsn or not news.n or news.low >= lsn %}
  {% if not ours or not reached or plan.version.commit >= lsn %}{% do return(none) %}{% endif %}
  {% do return({'relation': rows[0][0], 'lsn': lsn, 'snapshot': rows[0][2][1:], 'columns': plan.columns}) %}
{% endmacro %}
