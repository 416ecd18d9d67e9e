{% test cdc_as_proven(model, relid, current) %}
{#- dbt learns here, outside of `execute`, what the test depends on. #}
{%- set proofs = source('ops', 'published') %}
{%- set proof = cdc_last_proof(model, relid, proofs) if execute else none %}
{%- if proof is none %}
select 1 as nothing where false
{%- else %}
{%- set cells = [] %}
{%- for column in proof.columns %}
  {#- Compared as the source's texts: which floats their type holds depends on how Java prints them. #}
  {%- do cells.append((cdc_text_of(column.lake, column) | trim) ~ ' as ' ~ cdc_quote(column.lake)) %}
{%- endfor %}
{%- set cells = cells | join(', ') or 'true as row' %}
with history as (
  select {{ cells }} from {{ model }}
  where _cdc_from_lsn <= {{ proof.lsn }} and (_cdc_to_lsn is null or _cdc_to_lsn > {{ proof.lsn }})),
proven as (select {{ cells }} from {{ current }} version as of {{ proof.snapshot }})
select 'not in history' as _cdc_found, * from (select * from proven except all select * from history)
union all
select 'not proven' as _cdc_found, * from (select * from history except all select * from proven)
{%- endif %}
{% endtest %}
